"""What a person sees, and what a person types."""
