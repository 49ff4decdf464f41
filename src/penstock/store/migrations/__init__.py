"""The history of the store's tables, run by `penstock.store.upgrade`."""
