"""Display, summary and thinning of each kind of event: an `EventSpec` each, in `event_registry.EVENTS`."""
