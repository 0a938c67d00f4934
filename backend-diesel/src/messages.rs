//! What the server says in other languages than English, of what this library acts upon.
//!
//! As in the catalogs of PostgreSQL 15: Chinese, French, Georgian, German, Italian, Japanese, Korean,
//! Russian, Spanish, Swedish and Ukrainian.

/// The codes with the messages that the server sends with them.
pub(crate) const TRANSLATED: &[(&str, &[&str])] = &[
    (
        "55P03",
        &[
            "storniere Anfrage wegen Zeitüberschreitung einer Sperre",
            "cancelando la sentencia debido a que se agotó el tiempo de espera de candados (locks)",
            "annulation de la requête à cause du délai écoulé pour l'obtention des verrous",
            "annullamento dell'istruzione a causa di timeout di lock",
            "ロックのタイムアウトのためステートメントをキャンセルしています",
            "გამოსახულება გაუქმდება ბლოკის მოლოდინის ვადის ამოწურვის გამო",
            "잠금 대기 시간 초과로 작업을 취소합니다.",
            "выполнение оператора отменено из-за тайм-аута блокировки",
            "avbryter sats på grund av lås-timeout",
            "виконання оператора скасовано через тайм-аут блокування",
            "由于锁超时，取消语句操作",
        ],
    ),
    (
        "40P01",
        &[
            "Verklemmung (Deadlock) entdeckt",
            "se ha detectado un deadlock",
            "interblocage (deadlock) détecté",
            "rilevato deadlock",
            "デッドロックを検出しました",
            "ნაპოვნია ურთიერთბლოკირება",
            "deadlock 발생했음",
            "обнаружена взаимоблокировка",
            "deadlock upptäckt",
            "виявлено взаємне блокування",
            "检测到死锁",
        ],
    ),
    (
        "53200",
        &[
            "Shared Memory aufgebraucht",
            "memoria compartida agotada",
            "mémoire partagée épuisée",
            "memoria condivisa esaurita",
            "共有メモリが足りません",
            "არასაკმარისი გაზიარებული მეხსიერება",
            "공유 메모리 부족",
            "нехватка разделяемой памяти",
            "slut på delat minne",
            "нестача спільної пам'яті",
            "共享内存用尽",
        ],
    ),
];
