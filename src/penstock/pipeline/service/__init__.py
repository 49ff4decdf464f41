"""The process that runs views: reconciles them with their desired state, monitors and reports them.

    process ─→ manager ─┬→ control   desired and actual state of each view
                        └→ metrics   for operators

A view that fails does not stop the process.
"""
