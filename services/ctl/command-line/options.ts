import { NOT_UNDERSTOOD, type Report } from '../output/report.js';
import { text } from './forms.js';
import type { Flag, Option } from './verb.js';

export const YES: Flag = { name: '--yes', about: 'do it; without this, only show what would be done' };

/**
 * What is told of something that cannot be taken back, and was not confirmed.
 * @param again - the command that does what was shown, and no more, without its `--yes`
 */
export function unconfirmed(preview: Omit<Report, 'exitCode'>, again: string): Report {
  const hints = [...(preview.hints ?? []), `nothing was changed; to do it: podwirectl ${again} ${YES.name}`];
  return { ...preview, hints, exitCode: NOT_UNDERSTOOD };
}

/** Refuses a change of what somebody else changed since. */
export const RESOURCE_VERSION: Option<string> = {
  name: '--resource-version',
  form: text('VERSION'),
  about: 'only if the object still has this version, as "show --output json" prints it',
};
