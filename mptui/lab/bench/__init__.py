"""What each setting is worth: ablations, measured in alternating rounds."""
