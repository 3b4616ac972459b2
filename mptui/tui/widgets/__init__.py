"""The panels and the chart that the screens are made of."""
