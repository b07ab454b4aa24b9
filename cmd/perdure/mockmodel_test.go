package main

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/perdure/perdure/internal/testkit/eventually"
	"github.com/perdure/perdure/supervisor/model"
)

// mock runs the command until the test ends, and returns its URL.
func mock(t *testing.T, args ...string) string {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	out, in := io.Pipe()
	ended := make(chan error, 1)
	go func() {
		err := mockModel(ctx, append(args, "--listen", "127.0.0.1:0"), in, io.Discard)
		in.CloseWithError(err)
		ended <- err
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("perdure mock-model: error %v, want none", err)
		}
	})
	url, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(url)
}

func TestMockModelAnswersByItsScript(t *testing.T) {
	script := filepath.Join(t.TempDir(), "model.toml")
	if err := os.WriteFile(script,
		[]byte("[[rule]]\nmatch = { regexp = 'name is (\\w+)' }\nanswer = { text = 'Hello {{1}}.' }\n"),
		0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		args []string
		want string
	}{{nil, "You said: My name is Ada"}, {[]string{"--script", script}, "Hello Ada."}} {
		url := mock(t, x.args...)
		c, err := model.New(model.Options{Models: []model.Endpoint{{BaseURL: url, Model: "mock"}}})
		if err != nil {
			t.Fatal(err)
		}
		res, err := c.Complete(t.Context(), model.Request{Messages: []model.Message{{Role: model.User,
			Content: "My name is Ada"}}})
		if err != nil || res.Message.Content != x.want {
			t.Errorf("answer = %+v (error %v), want %q", res, err, x.want)
		}
		var list []struct{ Model, Ended string }
		eventually.True(t, "the record of the answer", func() bool {
			list = nil
			asked, err := http.Get(strings.TrimSuffix(url, "/v1") + "/requests")
			if err != nil {
				t.Fatal(err)
			}
			defer asked.Body.Close()
			return json.NewDecoder(asked.Body).Decode(&list) == nil && len(list) == 1 && list[0].Ended != ""
		})
		if list[0].Model != "mock" || list[0].Ended != "complete" {
			t.Errorf("requests = %+v, want the one that was answered", list)
		}
	}
}

func TestMockModelRefusesToStart(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.toml")
	if err := os.WriteFile(bad, []byte("[[rule]]\nanswer = { txt = 'Hello' }\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--script", "missing.toml"}, exitFail, "missing.toml"},
		{[]string{"--script", bad}, exitFail, `unknown field "txt"`},
		{[]string{"--listen", "0.0.0.0:0"}, exitFail, "reachable from other machines"},
		{[]string{"extra"}, exitUsage, "takes no arguments"},
	} {
		_, stderr := mustRun(t, x.code, append([]string{"mock-model"}, x.args...)...)
		has(t, stderr, x.want)
	}
}
