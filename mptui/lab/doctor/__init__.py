"""The doctor: is this machine, this data, this configuration in order, and do two configurations agree.

Everything it looks at is a finding: ok, advice or error, with what it is and what to do. That something is
broken is a finding, too, and never the end of the examination.
"""
