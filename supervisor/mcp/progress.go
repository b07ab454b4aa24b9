package mcp

import (
	"context"
	"strconv"
	"sync"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/perdure/perdure/agent"
)

// calls are the contexts of calls by the tokens with which servers report progress.
type calls struct {
	mu   sync.Mutex // taken before the locks of the run that the progress is reported to
	last int64
	by   map[string]context.Context
}

// running are the calls of this process.
var running = &calls{by: make(map[string]context.Context)}

func (c *calls) add(ctx context.Context) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.last++
	token := "c" + strconv.FormatInt(c.last, 36)
	c.by[token] = ctx
	return token
}

func (c *calls) remove(token string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.by, token)
}

// progressed makes a server's report the progress of the run.
func progressed(_ context.Context, req *sdk.ProgressNotificationClientRequest) {
	token, _ := req.Params.ProgressToken.(string)
	running.mu.Lock()
	defer running.mu.Unlock()
	if ctx := running.by[token]; ctx != nil {
		_ = agent.Progress(ctx, map[string]any{"done": req.Params.Progress, "of": req.Params.Total,
			"message": cut(clean(req.Params.Message), maxError)}) // numbers and a text can be encoded
	}
}
