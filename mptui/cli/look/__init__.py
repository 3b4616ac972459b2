"""Commands that look: detect, profiles, doctor."""
