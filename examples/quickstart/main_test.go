package main

import (
	"context"
	"os"
)

func Example() {
	if err := run(context.Background(), os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// after 50 ms: deferred true, the run is running
	// joined again: completed, "Hello, world", <nil>
}
