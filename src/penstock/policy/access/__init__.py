"""Who may read and write what: policies over attributes, preferences, emergencies, roles."""
