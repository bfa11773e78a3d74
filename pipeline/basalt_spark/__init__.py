"""The PySpark data source and the Spark jobs; they come with the `spark` extra in a later step."""
