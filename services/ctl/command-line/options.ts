import { NOT_UNDERSTOOD } from '../exit-codes.js';
import type { Report } from '../output/report.js';
import type { Flag } from './verb.js';

export const YES: Flag = { name: '--yes', about: 'do it; without this, only show what would be done' };

/**
 * What is told of something that cannot be taken back, and was not confirmed.
 * @param again - the command that does what was shown, and no more, without its `--yes`
 */
export function unconfirmed(preview: Omit<Report, 'exitCode'>, again: string): Report {
  const hints = [...(preview.hints ?? []), `nothing was changed; to do it: podwirectl ${again} ${YES.name}`];
  return { ...preview, hints, exitCode: NOT_UNDERSTOOD };
}
