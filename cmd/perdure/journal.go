package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/perdure/perdure"
	"github.com/perdure/perdure/api"
	"github.com/perdure/perdure/client"
)

// journalCommand implements "perdure journal".
func journalCommand(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	f := flags("journal RUN", "Prints the steps that a run has recorded, also after its end; with --inbox what has "+
		"come to it. --export writes all that a replay needs into a file, for perdure builds check.\n\n"+
		"  perdure journal RUN\n  perdure journal RUN --inbox\n  perdure journal RUN --entry 3\n"+
		"  perdure journal RUN --export run.json", stderr)
	conn := addConnFlags(f)
	asJSON := f.Bool("json", false, "print JSON, one entry a line")
	inbox := f.Bool("inbox", false, "print the inbox instead")
	entry := f.Int64("entry", 0, "print the whole value of the entry with this `number`, and nothing else")
	export := f.String("export", "", "write the run, its input, journal and inbox to this `file`; - is the output")
	ids, err := parseMixed(f, args)
	if err != nil {
		return err
	}
	one := false
	f.Visit(func(x *flag.Flag) { one = one || x.Name == "entry" })
	if one && *entry < 1 {
		fmt.Fprintln(stderr, "perdure journal: --entry takes a number from 1 on")
		return errUsage
	}
	if f.given("export") && (*export == "" || one || *inbox) {
		fmt.Fprintln(stderr, "perdure journal: --export takes a file, and neither --inbox nor --entry")
		return errUsage
	}
	c, err := conn.connect(ctx)
	if err != nil {
		return err
	}
	if *export != "" {
		return exportRun(ctx, c, perdure.RunID(ids[0]), *export, *asJSON, stdout)
	}
	p := &entryPrinter{ctx: ctx, c: c, run: perdure.RunID(ids[0]), json: *asJSON, out: stdout,
		table: tabwriter.NewWriter(stdout, 0, 0, 2, ' ', 0)}
	switch {
	case one && *inbox:
		item, err := c.InboxItem(ctx, p.run, *entry)
		if err != nil {
			return err
		}
		return p.whole(item, &item.ShownValue)
	case one:
		step, err := c.Step(ctx, p.run, *entry)
		if err != nil {
			return err
		}
		return p.whole(step, &step.ShownValue)
	case *inbox:
		return p.inbox()
	}
	return p.journal()
}

// exportRun writes all that a replay of a run needs to a file. The file has the input and all results, so
// only its owner may read it.
func exportRun(
	ctx context.Context, c *client.Client, id perdure.RunID, file string, asJSON bool, stdout io.Writer,
) error {
	r, err := c.Replay(ctx, id)
	if err != nil {
		return err
	}
	text, err := perdure.Marshal(r)
	if err != nil {
		return err
	}
	text = append(text, '\n')
	if file == "-" {
		_, err := stdout.Write(text)
		return err
	}
	if err := os.WriteFile(file, text, 0o600); err != nil {
		return err
	}
	if asJSON {
		return printJSONLine(stdout, map[string]any{"run_id": r.RunID, "file": file, "journal": len(r.Journal),
			"inbox": len(r.Inbox)})
	}
	_, err = fmt.Fprintf(stdout, "%s: %s, %s, %d of its journal, %d of its inbox\n", visible(file), r.RunID,
		visible(r.Kind), len(r.Journal), len(r.Inbox))
	return err
}

// An entryPrinter prints the journal or the inbox of a run.
type entryPrinter struct {
	ctx   context.Context
	c     *client.Client
	run   perdure.RunID
	json  bool
	out   io.Writer
	table *tabwriter.Writer
	rows  int
}

// row prints an entry: as JSON, or as a row of a table with this heading.
func (p *entryPrinter) row(entry any, heading, format string, cells ...any) error {
	p.rows++
	if p.json {
		return printJSONLine(p.out, entry)
	}
	if p.rows == 1 {
		fmt.Fprintln(p.table, heading)
	}
	_, err := fmt.Fprintf(p.table, format, cells...)
	return err
}

// end flushes the table.
func (p *entryPrinter) end(nothing string) error {
	if p.rows == 0 && !p.json {
		fmt.Fprintln(p.out, nothing)
	}
	return p.table.Flush()
}

func (p *entryPrinter) journal() error {
	for after := int64(0); ; {
		page, err := p.c.Steps(p.ctx, p.run, after, 200)
		if err != nil {
			return err
		}
		for i := range page.Entries {
			e := &page.Entries[i]
			err := p.row(e, "#\tSTEP\tAT\tBYTES\tVALUE", "%d\t%s\t%s\t%d\t%s\n", e.Seq, visible(e.Key),
				e.At.Time().Local().Format(time.DateTime), e.Size, entryText(&e.ShownValue))
			if err != nil {
				return err
			}
		}
		if after = page.NextAfter; after == 0 {
			return p.end("Nothing is recorded yet.")
		}
	}
}

func (p *entryPrinter) inbox() error {
	for after := int64(0); ; {
		page, err := p.c.InboxItems(p.ctx, p.run, after, 200)
		if err != nil {
			return err
		}
		for i := range page.Items {
			x := &page.Items[i]
			err := p.row(x, "#\tTYPE\tNAME\tSTATUS\tAT\tBYTES\tVALUE", "%d\t%s\t%s\t%s\t%s\t%d\t%s\n", x.Seq,
				visible(x.Type), or(visible(x.Name)), x.Status, x.At.Time().Local().Format(time.DateTime), x.Size,
				entryText(&x.ShownValue))
			if err != nil {
				return err
			}
		}
		if after = page.NextAfter; after == 0 {
			return p.end("Nothing has come yet.")
		}
	}
}

// whole prints one value.
func (p *entryPrinter) whole(entry any, v *api.ShownValue) error {
	if p.json {
		return printJSON(p.out, entry)
	}
	if v.Damaged {
		return errors.New("the value is damaged: the store can't read it")
	}
	_, err := fmt.Fprintln(p.out, visible(string(v.Value)))
	return err
}

// maxEntryText bounds the text of a value in a row, in characters.
const maxEntryText = 100

// entryText shortens a value for a row.
func entryText(v *api.ShownValue) string {
	switch {
	case v.Damaged:
		return "(damaged)"
	case len(v.Value) == 0:
		return shortened(visible(v.Preview), maxEntryText)
	}
	return shortened(visible(string(v.Value)), maxEntryText)
}
