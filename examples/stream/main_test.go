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
	// A run survives its caller's impatience and its server's death: nothing that was accepted is lost.
}
