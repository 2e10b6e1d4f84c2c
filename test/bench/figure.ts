/** One measured figure. */
export interface Figure {
  /** Stable name: `group.what.how`. */
  readonly name: string;
  readonly value: number;
  /** `ratio`, `ms`, `1/s`, `MiB` or `count`. */
  readonly unit: string;
  readonly better: 'lower' | 'higher';
  /** The bound that the figure should keep. */
  readonly goal: number;
}

/** The `fraction` quantile (0 to 1) of a list, by nearest rank. */
export function quantile(values: readonly number[], fraction: number): number {
  const sorted = [...values].sort((a, b) => a - b);
  const value = sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * fraction))];
  if (value === undefined) throw new Error('a quantile of nothing');
  return value;
}

export function median(values: readonly number[]): number {
  return quantile(values, 0.5);
}

/** Whether a figure keeps its goal. */
function keepsGoal({ value, better, goal }: Figure): boolean {
  return better === 'lower' ? value <= goal : value >= goal;
}

export function formatFigure(figure: Figure): string {
  const sign = figure.better === 'lower' ? '≤' : '≥';
  const mark = keepsGoal(figure) ? '✓' : '✗';
  return `${mark} ${figure.name.padEnd(36)} ${figure.value.toFixed(3).padStart(10)} ${figure.unit.padEnd(6)} (${sign} ${figure.goal})`;
}
