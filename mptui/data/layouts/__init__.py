"""How the files of a set lie: in folders, lists or packed files, and which of two readings is meant."""
