package effect

import (
	"context"
	"database/sql"
	"net/http"
	"os"
	"os/exec"

	"github.com/perdure/perdure/agent"
)

// shop is a service of an agent.
type shop struct {
	db     *sql.DB
	client *http.Client
}

func wrong(ctx *agent.Context, s *shop) error {
	if _, err := http.Get("https://example.org/pay"); err != nil { // want `http.Get outside of steps: .* do it in a step`
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://example.org/pay", nil)
	if err != nil {
		return err
	}
	if _, err := s.client.Do(req); err != nil { // want `http.Client.Do outside of steps`
		return err
	}
	if err := os.WriteFile("order.txt", nil, 0o600); err != nil { // want `os.WriteFile outside of steps`
		return err
	}
	defer os.Remove("order.txt") // want `os.Remove outside of steps`
	cmd := exec.Command("make")
	if err := cmd.Run(); err != nil { // want `exec.Cmd.Run outside of steps`
		return err
	}
	_, err = s.db.ExecContext(ctx, "DELETE FROM orders") // want `sql.DB.ExecContext outside of steps`
	return err
}

func inSaga(ctx *agent.Context, s *shop) error {
	return agent.Saga(ctx, "order", func() error {
		_, err := s.db.Exec("INSERT INTO orders VALUES (1)") // want `sql.DB.Exec outside of steps`
		return err
	})
}

func inBranch(ctx *agent.Context) *agent.Branch {
	return agent.Go(ctx, "left", func(*agent.Context) error {
		return os.RemoveAll("orders") // want `os.RemoveAll outside of steps`
	})
}

func right(ctx *agent.Context, s *shop) error {
	order, err := os.ReadFile("order.txt") // it reads
	if err != nil {
		return err
	}
	pay := func(ctx context.Context) (int, error) {
		resp, err := s.client.Post("https://example.org/pay", "text/plain", nil)
		if err != nil {
			return 0, err
		}
		return resp.StatusCode, resp.Body.Close()
	}
	if _, err := agent.Step(ctx, "pay", pay); err != nil {
		return err
	}
	refund := func(ctx context.Context, _ int) error { return s.refund(ctx) }
	_, err = agent.Step(ctx, "store", func(ctx context.Context) (int, error) {
		if err := os.WriteFile("order.txt", order, 0o600); err != nil {
			return 0, err
		}
		_, err := s.db.ExecContext(ctx, "INSERT INTO orders VALUES (1)")
		return 1, err
	}, agent.Undo(refund))
	if err != nil {
		return err
	}
	_, err = agent.Parallel(ctx, "mail", []string{"a", "b"}, func(ctx context.Context, to string) (int, error) {
		return 1, exec.CommandContext(ctx, "mail", to).Run()
	})
	return err
}

// refund has no agent's context: who calls it decides.
func (s *shop) refund(ctx context.Context) error {
	_, err := s.db.ExecContext(ctx, "DELETE FROM orders")
	return err
}

// handle is no agent.
func handle(w http.ResponseWriter, r *http.Request) {
	if err := os.WriteFile("order.txt", nil, 0o600); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
	}
}

var _ = []any{wrong, inSaga, inBranch, right, handle}
