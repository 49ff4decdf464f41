"""The console: pages for data officers, operators and developers, in a browser.

    listener ─▶ connection ─▶ gate: host, session, CSRF ─▶ page ─▶ desk ─▶ store, authorizer
                                  │no
                                  ▼
                              sign-in: password, identity provider, one-time link

Rules that hold here:
- A page is one function that returns its data and one template that shows it. The data is what
  PAGE.json answers, described at /openapi.json: the two cannot differ.
- A room is modules of `pages` and a folder of `templates`. Who may see it is asked before its
  function runs: `administer`, or a right to monitor `$console/ROOM`. What the definitions do not
  give is not shown, nor counted.
- Payloads are shown where the authorizer lets this very person read them, and nowhere else.
- Nothing changes by GET. Every change carries a token that only this session's pages have, and
  comes from this origin.
- Nothing is loaded from other hosts, and no script or style stands in a page.
"""
