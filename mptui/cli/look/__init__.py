"""Commands that inspect: detect, profiles, doctor."""
