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
	// the first turn is over: "looking"
	// user: "How is cube?"
	// assistant: "Looking; I'll tell you."
	// assistant: "Done: check#1: completed the disk is fine; check#2: completed the load is fine;"
}
