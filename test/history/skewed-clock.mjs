// Imported before a program: shifts its wall clock by CLOCK_SKEW_MS. The monotonic clock is unchanged.
import process from 'node:process';

const skewMs = Number(process.env.CLOCK_SKEW_MS);
const RealDate = Date;

globalThis.Date = class extends RealDate {
  constructor(...args) {
    if (args.length === 0) super(RealDate.now() + skewMs);
    else super(...args);
  }

  static now() {
    return RealDate.now() + skewMs;
  }
};
