package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"text/tabwriter"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/client"
)

func artifactsCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("artifacts RUN [NAME]", `Lists the artifacts of a run, or gets one of them: to the
standard output, or into a file.

  perdure artifacts RUN
  perdure artifacts RUN NAME [-o FILE]`, stderr)
	conn := addConnFlags(f)
	file := f.String("o", "", "write it to this `file`, when all of it has come, and nowhere else")
	asJSON := f.Bool("json", false, "print JSON")
	words, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	if len(words) == 2 {
		return getArtifact(ctx, c, perdure.RunID(words[0]), words[1], *file, stdout)
	}
	list, err := c.Artifacts(ctx, perdure.RunID(words[0]))
	if err != nil {
		return err
	}
	if *asJSON {
		return printJSON(stdout, map[string]any{"artifacts": append([]perdure.Artifact{}, list...)})
	}
	tw := tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "NAME\tSIZE\tTYPE\tSHA256")
	for _, a := range list {
		fmt.Fprintf(tw, "%s\t%d\t%s\t%.12s\n", visible(a.Name), a.Size, visible(a.ContentType), a.SHA256)
	}
	return tw.Flush()
}

func getArtifact(ctx context.Context, c *client.Client, run perdure.RunID, name, file string,
	stdout io.Writer) (err error) {
	body, _, err := c.Artifact(ctx, run, name)
	if err != nil {
		return err
	}
	defer body.Close()
	if file == "" {
		_, err = io.Copy(stdout, body)
		return err
	}
	// The file is written under another name and renamed, so that it is never incomplete.
	part, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.Remove(part.Name()))
		}
	}()
	if _, err = io.Copy(part, body); err != nil {
		return errors.Join(err, part.Close())
	}
	if err = part.Close(); err != nil {
		return err
	}
	return os.Rename(part.Name(), file)
}

func rmCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("rm ID…", `Deletes ended runs with all that belongs to them, or with --thread threads with their
messages. This can't be undone.

  perdure rm RUN…
  perdure rm --thread THREAD…`, stderr)
	conn := addConnFlags(f)
	threads := f.Bool("thread", false, "what is named are threads")
	words, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	for i := 0; i < len(words) && !*threads; i++ {
		id, err := conn.runID(words[i])
		if err != nil {
			return err
		}
		words[i] = string(id)
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	for _, id := range words {
		if *threads {
			err = c.DeleteThread(ctx, perdure.ThreadID(id))
		} else {
			err = c.Delete(ctx, perdure.RunID(id))
			conn.ended(perdure.RunID(id))
		}
		if err != nil {
			return fmt.Errorf("%s: %w", id, err)
		}
		fmt.Fprintln(stdout, visible(id)+" is deleted")
	}
	return nil
}
