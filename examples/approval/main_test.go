package main

import (
	"context"
	"os"
	"strings"
)

func Example_yes() {
	if err := run(context.Background(), strings.NewReader("y\n"), os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// Pay this bill? {"Amount":42,"To":"Ada"} [y/N] completed "paid 42 to Ada"
}

func Example_no() {
	if err := run(context.Background(), strings.NewReader("n\n"), os.Stdout); err != nil {
		panic(err)
	}
	// Output:
	// Pay this bill? {"Amount":42,"To":"Ada"} [y/N] completed "not paid: somebody said no"
}
