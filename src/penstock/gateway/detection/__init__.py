"""Hosts the engine that detects complex events: journal, snapshots, reload, leader election."""
