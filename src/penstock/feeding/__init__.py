"""Files become records of a stream: read as they are written, fed into a log, each row once."""
