"""Mixed precision: autocast, gradient scaling, layers kept in fp32."""
