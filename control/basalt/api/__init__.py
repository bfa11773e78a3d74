"""The API as bytes: bodies, codecs, positions and markers, for the server and its clients alike."""
