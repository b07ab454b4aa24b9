package mcp

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"strings"

	sdk "github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/perdure/perdure/worker"
)

// text returns a result for the model. It begins with "error: " if the tool says that it has failed, or
// if the result is not what the tool's schema promises. Files in it are artifacts of the run.
func (c *Client) text(ctx context.Context, t *tool, res *sdk.CallToolResult) string {
	var parts []string
	files := 0
	for _, content := range res.Content {
		text, file := describe(content)
		if file != nil {
			if files++; files <= maxFiles {
				text = file.store(ctx, files)
			} else {
				text = "(a file more than can be kept)"
			}
		}
		parts = append(parts, text)
	}
	structured, err := json.Marshal(res.StructuredContent)
	if err != nil || res.StructuredContent == nil {
		structured = nil
	}
	if len(structured) > 0 && strings.TrimSpace(strings.Join(parts, "")) == "" {
		parts = append(parts, string(structured))
	}
	text := clean(strings.Join(parts, "\n"))
	switch {
	case res.NeedsInput():
		text = "error: the server asks for input, which can't be given here. " + text
	case res.IsError:
		text = "error: " + text
	case t.hasOut && len(structured) == 0:
		text = "error: the tool promises a structured result, and gave none. It gave: " + text
	case t.hasOut:
		if err := t.out.check(structured); err != nil {
			text = fmt.Sprintf("error: the result is not what the tool's schema promises (%s). It gave: %s",
				cut(clean(err.Error()), maxError), text)
		}
	}
	return c.shorten(ctx, text)
}

// shorten cuts a text that is too long, and keeps the whole as an artifact.
func (c *Client) shorten(ctx context.Context, text string) string {
	if len(text) <= c.opt.MaxResult {
		return text
	}
	note := fmt.Sprintf("\n… (cut: %d bytes in all)", len(text))
	_, err := worker.PutArtifact(ctx, "result.txt", "text/plain; charset=utf-8", strings.NewReader(text))
	if err == nil {
		note = fmt.Sprintf("\n… (cut: %d bytes in all; the artifact result.txt has the whole)", len(text))
	}
	return cut(text, max(c.opt.MaxResult-len(note), 0)) + note
}

// A file is a part of a result that is no text.
type file struct {
	kind, mime string
	data       []byte
}

// describe returns a part of a result as a text, or as a file.
func describe(content sdk.Content) (string, *file) {
	switch x := content.(type) {
	case *sdk.TextContent:
		return x.Text, nil
	case *sdk.ImageContent:
		return "", &file{"image", x.MIMEType, x.Data}
	case *sdk.AudioContent:
		return "", &file{"audio", x.MIMEType, x.Data}
	case *sdk.ResourceLink:
		return fmt.Sprintf("(a link: %s %s)", cut(x.URI, maxError), cut(x.Title, maxName)), nil
	case *sdk.EmbeddedResource:
		switch {
		case x.Resource == nil:
		case x.Resource.Text != "":
			return x.Resource.Text, nil
		default:
			return "", &file{"resource", x.Resource.MIMEType, x.Resource.Blob}
		}
	}
	return "(content of a kind that can't be shown)", nil
}

// store keeps a file as an artifact, and returns a text about it.
func (f *file) store(ctx context.Context, n int) string {
	name := fmt.Sprintf("%s-%d", f.kind, n)
	mime := f.mime
	if len(mime) > 100 || strings.ContainsFunc(mime, func(r rune) bool { return r <= ' ' || r > '~' }) {
		mime = ""
	}
	if _, err := worker.PutArtifact(ctx, name, mime, bytes.NewReader(f.data)); err != nil {
		return fmt.Sprintf("(%s of %d bytes, which could not be kept)", f.kind, len(f.data))
	}
	return fmt.Sprintf("(%s of %d bytes %s: the artifact %s)", f.kind, len(f.data), mime, name)
}
