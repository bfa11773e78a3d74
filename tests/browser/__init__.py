"""A package, for its fixtures to end with it: as long as Playwright runs its thread has an event loop, and other tests start their own."""
