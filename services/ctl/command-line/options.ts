import { NOT_UNDERSTOOD, type Report } from '../output/report.js';
import { text } from './forms.js';
import type { Flag, Option } from './verb.js';

export const YES: Flag = { name: '--yes', about: 'do it; without this, only show what would be done' };

/**
 * The report of an irreversible action that was not confirmed.
 * @param again - the command that executes exactly the preview, without its `--yes`
 */
export function unconfirmed(preview: Omit<Report, 'exitCode'>, again: string): Report {
  const hints = [...(preview.hints ?? []), `nothing was changed; to do it: podwirectl ${again} ${YES.name}`];
  return { ...preview, hints, exitCode: NOT_UNDERSTOOD };
}

/** Rejects a change of an object that was modified since it was read. */
export const RESOURCE_VERSION: Option<string> = {
  name: '--resource-version',
  form: text('VERSION'),
  about: 'only if the object still has this version, as "show --output json" prints it',
};
