from penstock.cli.reference import write_metrics
from penstock.store.audit import AuditWriter
from penstock.telemetry import counter, logs, metrics, redaction

COUNTED = counter("penstock_test_reference", "Counted by a test.", way=("in", "out"))


def test_every_metric_of_an_imported_part_is_described() -> None:
    text = write_metrics()
    audit = [one for one in metrics.catalogue() if one.module == AuditWriter.__module__]
    assert len(audit) == 5
    for one in audit:
        assert f"| `{one.name}` | {one.type} |  | {one.help} |" in text
    assert logs.WITHHELD.declaration.name == "penstock_log_withheld_total"
    assert "| `penstock_log_withheld_total` | counter | `what`: field, value, message |" in text, (
        "labels are listed with their values"
    )


def test_what_tests_declare_is_left_out() -> None:
    assert "penstock_test_reference_total" in [one.name for one in metrics.catalogue()]
    assert "penstock_test" not in write_metrics()


def test_every_log_field_is_listed() -> None:
    text = write_metrics()
    for name, shape in redaction.allowed().items():
        assert f"| `{name}` | {shape} |" in text
