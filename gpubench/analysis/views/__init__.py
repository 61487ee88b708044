"""What the views of a run say beyond its figures: lines, levels, models, what pays, and all of it in words."""
