"""From a request to a job: every value decided before the first step."""
