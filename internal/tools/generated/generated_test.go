// Package generated generates a Go client from the OpenAPI document of a server, compiles it and calls the server with
// it. It is a module of its own, so that nobody who imports Perdure gets the generator.
package generated

import (
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	_ "github.com/oapi-codegen/runtime" // which the generated client imports

	"github.com/perdure/perdure/embedded"
)

const program = `package main

import (
	"context"
	"fmt"
	"net/http"
	"os"

	"github.com/perdure/perdure/internal/tools/generated/NAME/client"
)

func main() {
	key := func(_ context.Context, r *http.Request) error {
		r.Header.Set("Authorization", "Bearer "+os.Args[2])
		return nil
	}
	c, err := client.NewClientWithResponses(os.Args[1], client.WithRequestEditorFn(key))
	if err != nil {
		panic(err)
	}
	class, attempts := client.StartRunClass("agent"), 5
	res, err := c.PostV1RunsWithResponse(context.Background(), nil, client.StartRun{Kind: "report", Class: &class,
MaxAttempts: &attempts})
	if err != nil {
		panic(err)
	}
	if res.JSON201 == nil {
		panic(string(res.Body))
	}
	fmt.Println(res.JSON201.State, res.JSON201.Class, res.JSON201.MaxAttempts)
}
`

func TestGeneratedClientCallsTheServer(t *testing.T) {
	srv, err := embedded.Open(embedded.Options{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	hs := httptest.NewServer(srv.Handler())
	t.Cleanup(func() {
		srv.Drain()
		hs.Close()
		srv.Close()
	})
	res, err := http.Get(hs.URL + "/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	document, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}

	dir, err := os.MkdirTemp(".", "made-") // a package of this module, to be compiled with what it requires
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	for file, text := range map[string]string{
		"openapi.json": string(document), "main.go": strings.ReplaceAll(program, "NAME", filepath.Base(dir)),
		"client/doc.go": "package client\n",
	} {
		path := filepath.Join(dir, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	goes(t, "tool", "oapi-codegen", "-generate", "types,client", "-package", "client", "-o",
		filepath.Join(dir, "client", "client.go"), filepath.Join(dir, "openapi.json"))
	if said := goes(t, "run", "./"+dir, hs.URL, srv.Key()); said != "queued agent 5\n" {
		t.Errorf("the generated client got %q, want the run that it started", said)
	}
}

// goes runs the go command.
func goes(t *testing.T, args ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", args...)
	var complaint strings.Builder
	cmd.Stderr = &complaint
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go %s: %v\n%.4000s%.4000s", strings.Join(args, " "), err, complaint.String(), out)
	}
	return string(out)
}
