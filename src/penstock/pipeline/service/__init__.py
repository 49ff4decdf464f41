"""The process that runs views: brings them where they are wanted, watches and reports them.

    process ─→ manager ─┬→ control   what is wanted of each view, and how it is
                        └→ metrics   figures for operators

A view that fails does not stop the process.
"""
