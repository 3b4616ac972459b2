"""How each kind of event is shown, counted and kept: one `EventSpec` each, in `event_registry.EVENTS`."""
