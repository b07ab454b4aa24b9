// Tutorial: the worker of docs/tutorial.md. It has a handler, a first agent, and one that spawns
// searches, asks a person and publishes. It uses PERDURE_URL and PERDURE_KEY.
package main

import (
	"context"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	"github.com/perdure/perdure/client"
	"github.com/perdure/perdure/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	c := client.New(os.Getenv("PERDURE_URL"), os.Getenv("PERDURE_KEY"), client.Options{})
	w := worker.New(c, worker.Options{Logger: slog.Default()})
	register(w)
	if err := w.Run(ctx); err != nil {
		slog.Error("the worker ended", "error", err)
		os.Exit(1)
	}
}

func register(w *worker.Worker) {
	worker.Handle(w, "search", search)
	worker.Agent(w, "draft", draft)
	worker.Agent(w, "report", report)
}
