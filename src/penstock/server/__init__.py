"""The server: front ends hand privacy requests in, services answer them, by REST.

    listener ─▶ connection ─▶ who calls? ─▶ within limits? ─▶ operation ─▶ PrivacyBroker ─▶ store
                                 │no             │no                            │no
                                 ▼               ▼                              ▼
                                401             429                   404, the same for all

Rules that hold here:
- The broker of privacy requests alone decides who may do what; here it is found out who calls.
- No identifier of a person is in a URL, a log line, a metric or an error.
- Where the definitions or the store cannot be reached, nothing is accepted (503).
"""
