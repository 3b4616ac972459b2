"""Child processes: fresh interpreters, and forks of one that has imported torch already."""
