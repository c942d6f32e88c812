"""What a run computes: the step, the session, and callbacks for all that is periodic."""
