package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/agent"
	"github.com/perdure/perdure/worker"
)

// library counts the words of fifty books, each as a child, ten at the same time. A book that can't
// be read is no reason to leave the others.
var library = Program{
	Name:  "library",
	Input: 50,
	Register: func(w *worker.Worker, world World) {
		worker.Handle(w, "library-book", count)
		worker.Agent(w, "library", read)
	},
}

// A Count is the result of library.
type Count struct{ Books, Words, Unreadable int }

func read(ctx *agent.Context, books int) (Count, error) {
	titles := make([]string, books)
	for n := range titles {
		titles[n] = fmt.Sprintf("volume %d", n+1)
	}
	counted, err := agent.Map[int](ctx, "library-book", titles, agent.MapOptions{Limit: 10, Settle: true})
	if err != nil {
		return Count{}, err
	}
	sum := Count{Books: counted.Completed, Unreadable: counted.Failed}
	for _, words := range counted.Results {
		sum.Words += words
	}
	return sum, nil
}

func count(_ context.Context, title string) (int, error) {
	if strings.HasSuffix(title, "13") {
		return 0, perdure.Permanent(errors.New("its pages are missing"))
	}
	return 1000 + len(title), nil
}
