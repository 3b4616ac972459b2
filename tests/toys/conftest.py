from tests.decoders import forked_decoders
from tests.made.apps import drawn_when_looked_at, styles_are_parsed_once, waits_are_for_work_alone

__all__ = ["drawn_when_looked_at", "forked_decoders", "styles_are_parsed_once", "waits_are_for_work_alone"]
