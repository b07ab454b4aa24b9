// Dead letters: which runs can be redriven.

/** mayHaveLetter tells whether a run has ended in a way that may have left a letter. */
export const mayHaveLetter = run => run.state === 'failed' || run.state === 'timeout';

/** canRedrive tells whether a letter was not redriven yet. */
export const canRedrive = letter => Boolean(letter) && !letter.redriven_by_run_id;
