"""The rules in force, the decisions they lead to, and the record of denials."""
