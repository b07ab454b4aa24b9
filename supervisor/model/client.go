package model

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// Options configure a Client. Models is required, and zero values of the others have defaults.
type Options struct {
	// Models are the endpoints. The first one is called first, and the others are fallbacks, in
	// their order.
	Models []Endpoint
	// Retries is how often an attempt that failed is repeated at the same endpoint. The default is 3,
	// and a negative number means never.
	Retries int
	// Backoff is the first pause between attempts. It doubles with each, up to 20 s. The default is
	// half a second.
	Backoff time.Duration
	// MaxWait is the longest Retry-After that a call waits for. If an endpoint demands more, the next
	// one is called, or the call ends with an error that says so. The default is a minute.
	MaxWait time.Duration
	// Prices are those of models, by their names.
	Prices map[string]Price
	// MaxAnswer limits text, reasoning and arguments of an answer together, in bytes. The default is
	// 4 MiB, which is about a million tokens.
	MaxAnswer int
	// Transport replaces the network.
	Transport http.RoundTripper
}

// An Endpoint is a model behind an address.
type Endpoint struct {
	// BaseURL is the address of the API without /chat/completions, such as https://api.openai.com/v1.
	BaseURL string
	// Key is sent as a bearer token. Empty means none.
	Key string
	// Model is the model's name.
	Model string
	// Provider chooses the default timeouts: "ollama", "openrouter" or another. Empty means that the
	// address tells.
	Provider string
	// FirstToken limits the time from the request to the first token. The default is 30 s for Ollama,
	// and 60 s for others.
	FirstToken time.Duration
	// BetweenTokens limits the time between two tokens. The default is 60 s, and for Ollama two
	// minutes, as it sends a tool call when it is complete.
	BetweenTokens time.Duration
	// Header is sent too.
	Header map[string]string
}

// String returns the endpoint without its key.
func (e Endpoint) String() string { return e.Model + " at " + e.BaseURL }

// GoString is String, so that no log has the key.
func (e Endpoint) GoString() string { return e.String() }

// A Client calls models. It may be used by several goroutines.
type Client struct {
	opt       Options
	endpoints []*endpoint
	http      *http.Client
}

// An endpoint is an Endpoint with its defaults, and with what was learnt about it.
type endpoint struct {
	Endpoint
	url string

	mu         sync.Mutex
	adaptation adaptation
}

// New returns a client.
func New(opt Options) (*Client, error) {
	if err := opt.Validate(); err != nil {
		return nil, err
	}
	opt.Backoff = byDefault(opt.Backoff, 500*time.Millisecond)
	opt.MaxWait = byDefault(opt.MaxWait, time.Minute)
	opt.MaxAnswer = byDefault(opt.MaxAnswer, 4<<20)
	opt.Retries = max(byDefault(opt.Retries, 3), 0)
	c := &Client{opt: opt, http: &http.Client{Transport: opt.Transport,
		// A redirect would turn the call into another one, and take the conversation elsewhere.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
	if opt.Transport == nil {
		c.http.Transport = http.DefaultTransport.(*http.Transport).Clone()
	}
	for _, e := range opt.Models {
		limits, ok := timeouts[e.provider()]
		if !ok {
			limits = timeouts[""]
		}
		e.FirstToken = byDefault(e.FirstToken, limits.first)
		e.BetweenTokens = byDefault(e.BetweenTokens, limits.between)
		base := strings.TrimSuffix(strings.TrimRight(e.BaseURL, "/"), "/chat/completions")
		c.endpoints = append(c.endpoints, &endpoint{Endpoint: e, url: base + "/chat/completions"})
	}
	return c, nil
}

// timeouts are the default timeouts of providers: to the first token, and between tokens.
var timeouts = map[string]struct{ first, between time.Duration }{
	"ollama":     {30 * time.Second, 2 * time.Minute}, // it sends a tool call when it is complete
	"openrouter": {time.Minute, time.Minute},
	"":           {time.Minute, time.Minute}, // others
}

func byDefault[T int | time.Duration](v, otherwise T) T {
	if v == 0 {
		return otherwise
	}
	return v
}

// provider returns the provider's name, or the one that the address tells.
func (e *Endpoint) provider() string {
	u, err := url.Parse(e.BaseURL)
	switch {
	case e.Provider != "" || err != nil:
		return strings.ToLower(e.Provider)
	case u.Port() == "11434" || strings.Contains(u.Hostname(), "ollama"):
		return "ollama"
	case u.Hostname() == "openrouter.ai" || strings.HasSuffix(u.Hostname(), ".openrouter.ai"):
		return "openrouter"
	}
	return ""
}

// Validate checks the options.
func (o *Options) Validate() error {
	if len(o.Models) == 0 {
		return errors.New("models: at least one is needed")
	}
	for i, e := range o.Models {
		u, err := url.Parse(e.BaseURL)
		switch {
		case err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
			return fmt.Errorf("models[%d]: the base URL is not one such as https://api.openai.com/v1", i)
		case u.RawQuery != "" || u.Fragment != "" || u.User != nil:
			return fmt.Errorf("models[%d]: the base URL has a query, a fragment or a user, and can't", i)
		case e.Model == "":
			return fmt.Errorf("models[%d]: the model has no name", i)
		case e.FirstToken < 0 || e.BetweenTokens < 0:
			return fmt.Errorf("models[%d]: a timeout is negative", i)
		case strings.ContainsAny(e.Key, "\r\n"):
			return fmt.Errorf("models[%d]: the key has a line end in it", i)
		}
		for name, value := range e.Header {
			if name == "" || strings.ContainsAny(name+value, "\r\n\x00") {
				return fmt.Errorf("models[%d]: the header %q is malformed", i, name)
			}
		}
	}
	if o.Backoff < 0 || o.MaxWait < 0 || o.MaxAnswer < 0 {
		return errors.New("backoff, max_wait and max_answer are not negative")
	}
	for name, p := range o.Prices {
		if !(p.Input >= 0 && p.Output >= 0 && p.CachedInput >= 0) {
			return fmt.Errorf("prices: that of %s is negative", name)
		}
	}
	return nil
}

// Complete returns the next message of a conversation. The error is an [*Error], that of the
// context, or that of one of the request's own functions.
func (c *Client) Complete(ctx context.Context, r Request) (*Response, error) {
	if err := r.Validate(); err != nil {
		return nil, &Error{Kind: Permanent, Code: CodeRefused, Message: err.Error()}
	}
	var (
		attempts int
		lost     Usage
		errs     []*Error
	)
	for i, e := range c.endpoints {
		res, f, err := c.completeAt(ctx, e, &r, &attempts, &lost)
		if err != nil {
			return nil, err
		}
		if f == nil {
			res.Endpoint, res.Attempts, res.Lost = i, attempts, lost
			return res, nil
		}
		errs = append(errs, f)
		if f.Code == CodeContextLength || !r.mayRepeat(f) || !r.allows(lost) {
			break
		}
		if i < len(c.endpoints)-1 {
			r.retry(f, 0)
			r.restart(f)
		}
	}
	out := combine(errs)
	out.Lost = lost
	return nil, out
}

// completeAt calls one endpoint until it answers or is given up.
func (c *Client) completeAt(ctx context.Context, e *endpoint, r *Request, attempts *int, lost *Usage) (*Response,
	*Error, error) {
	for try := 0; ; try++ {
		*attempts++
		form := e.adapted()
		res, f, err := c.attempt(ctx, e, r, form)
		if f == nil {
			return res, nil, err
		}
		*lost = lost.Add(f.Lost)
		if e.learn(f, form) {
			try-- // the next attempt is another request
			continue
		}
		if f.Kind == Permanent || !r.mayRepeat(f) || try >= c.opt.Retries || f.RetryAfter > c.opt.MaxWait ||
			!r.allows(*lost) {
			return nil, f, nil
		}
		pause := max(backoff(c.opt.Backoff, try), f.RetryAfter)
		if end, ok := ctx.Deadline(); ok && time.Until(end) < pause {
			return nil, f, nil
		}
		r.retry(f, pause)
		if !sleep(ctx, pause) {
			return nil, nil, fmt.Errorf("call of model %s: %w (before: %v)", e.Model, context.Cause(ctx), f)
		}
		r.restart(f)
	}
}

// mayRepeat tells whether the answer may begin again after a failure.
func (r *Request) mayRepeat(f *Error) bool { return !f.passed || r.OnRestart != nil }

// allows tells whether the caller wants another attempt after what was lost.
func (r *Request) allows(lost Usage) bool { return r.MayRetry == nil || r.MayRetry(lost) }

// retry says that another attempt follows.
func (r *Request) retry(f *Error, pause time.Duration) {
	if r.OnRetry != nil {
		r.OnRetry(f, pause)
	}
}

// restart says that the answer begins again, if some of it was passed on.
func (r *Request) restart(f *Error) {
	if f.passed {
		r.OnRestart(f)
	}
}

// An adaptation is the form of a request that an endpoint accepts. The endpoint refuses a field that it
// does not know, or the lack of one, and from then on gets the other form.
type adaptation struct{ noStreamOptions, maxCompletion, noTemperature, sendReasoning, noExtra bool }

// adapted returns the form that is known to be accepted.
func (e *endpoint) adapted() adaptation {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.adaptation
}

// learn tells whether a refused request can be sent in another form than it was.
func (e *endpoint) learn(f *Error, sent adaptation) bool {
	if f.Code != CodeRefused || f.Status != http.StatusBadRequest && f.Status != http.StatusUnprocessableEntity {
		return false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	text := strings.ToLower(f.Message)
	has := func(word string) bool { return strings.Contains(text, word) }
	switch {
	case has("stream_options") && !sent.noStreamOptions:
		e.adaptation.noStreamOptions = true
	case has("max_tokens") && has("max_completion_tokens") && !sent.maxCompletion:
		e.adaptation.maxCompletion = true
	case has("temperature") && has("support") && !sent.noTemperature:
		e.adaptation.noTemperature = true
	case has("reasoning_content") && !sent.sendReasoning: // DeepSeek: "must be passed back"
		e.adaptation.sendReasoning = true
	case has("extra_content") && !sent.noExtra:
		e.adaptation.noExtra = true
	default:
		return false
	}
	return true
}

// apply changes a request to the form.
func (a adaptation) apply(r *wireRequest) {
	if a.noStreamOptions {
		r.StreamOptions = nil
	}
	if a.maxCompletion {
		r.MaxTokens, r.MaxCompletion = 0, r.MaxTokens
	}
	if a.noTemperature {
		r.Temperature = nil
	}
}
