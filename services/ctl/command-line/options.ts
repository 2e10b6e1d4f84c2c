import { INVALID_USAGE, type Report } from '../output/report.js';
import { text } from './forms.js';
import type { Flag, Option } from './verb.js';

export const YES: Flag = { name: '--yes', about: 'execute; without it, only show what would be done' };

/**
 * The report of an irreversible action without `--yes`.
 * @param command - executes exactly the preview, once `--yes` is added
 */
export function previewReport(preview: Omit<Report, 'exitCode'>, command: string): Report {
  const hints = [...(preview.hints ?? []), `nothing was changed; to execute it: podwirectl ${command} ${YES.name}`];
  return { ...preview, hints, exitCode: INVALID_USAGE };
}

/** Rejects a change of an object that was modified since it was read. */
export const RESOURCE_VERSION: Option<string> = {
  name: '--resource-version',
  form: text('VERSION'),
  about: 'only if the object still has this version, as "show --output json" prints it',
};
