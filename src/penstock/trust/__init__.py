"""Trust between domains that share a broker which none of them trusts: keys and sealed messages.

Rules that hold here:
- Pure: no sockets, no files, no clock and no randomness of its own. Both are handed in.
- No cryptography of our own: AES-GCM, HKDF, HPKE and Ed25519 of the library `cryptography`.
- Fail closed: what does not open, verify or fit is an error that says what it was.
"""
