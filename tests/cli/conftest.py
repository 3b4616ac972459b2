from tests.decoders import forked_decoders

__all__ = ["forked_decoders"]
