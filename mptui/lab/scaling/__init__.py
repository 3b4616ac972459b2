"""How a training scales to several processes: simulated, for sizes that nobody has here."""
