"""The audit log: append-only, tamper-evident, and without anybody's name in it.

log = AuditLog.open(database, settings.audit.signing_key)
people = Pseudonyms.open(settings.audit.pseudonym_key)
with closing(AuditWriter(log)) as writer:
    ticket = writer.submit(
        Entry.make("decision.read", Outcome.DENIED, actor=people.person("alice"), epoch=7)
    )
    writer.wait(ticket)
"""
